// The engines, in the order they are asked.
#include "registry/engine.h"

namespace deltaworks {

std::span<const Engine* const> engines() {
  static const Engine* const list[] = {
#ifdef DELTAWORKS_CUDA
      &cuda_engine(),
#endif
      &cpu_engine(),
#ifdef DELTAWORKS_REFERENCE
      &reference_engine(),
#endif
  };
  return list;
}

}  // namespace deltaworks
