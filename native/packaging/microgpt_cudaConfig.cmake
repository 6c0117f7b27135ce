# For find_package(microgpt_cuda): the target microgpt_cuda::microgpt_cuda is the library with its headers.  It needs nothing else.
include("${CMAKE_CURRENT_LIST_DIR}/microgpt_cudaTargets.cmake")
