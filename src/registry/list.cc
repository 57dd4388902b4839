// The engines, in the order they are asked.
#include "registry/engine.h"

namespace deltaworks {

const std::vector<const Engine*>& engines() {
  static const std::vector<const Engine*> list = {
      &cpu_engine(),
#ifdef DELTAWORKS_REFERENCE
      &reference_engine(),
#endif
  };
  return list;
}

}  // namespace deltaworks
