# Finds the torch whose headers the wheel's operators are compiled with: that of the Python which
# builds the wheel. Included by project() as pyproject.toml asks. A wheel without the operators is
# built only where DELTAWORKS_TORCH says OFF.
if(NOT DELTAWORKS_TORCH OR DELTAWORKS_TORCH_ROOT)
  return()
endif()

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "if True:
    import importlib.util
    torch = importlib.util.find_spec('torch')
    print(torch.submodule_search_locations[0] if torch else '')"
  OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS "${torch_root}/include/torch/csrc/stable/library.h")
  if(torch_root)
    set(found "the one in ${torch_root} is older")
  else()
    set(found "${Python_EXECUTABLE} has none, or pip hides it from the build")
  endif()
  message(FATAL_ERROR
    "The PyTorch operators need the headers of torch 2.11 or newer: ${found}. Either\n"
    "  pip install scikit-build-core torch, and add --no-build-isolation to this command,\n"
    "  or, for a torch elsewhere, -C cmake.define.DELTAWORKS_TORCH_ROOT=.../site-packages/torch,\n"
    "  or, to build without the operators, -C cmake.define.DELTAWORKS_TORCH=OFF.\n")
endif()
set(DELTAWORKS_TORCH_ROOT "${torch_root}" CACHE PATH "The torch package folder")
