# The CUDA backend: cuda_parts are its object targets, cuda_text is a word for the summary.  With AUTO it is built where nvcc is
# found.  The CUDA runtime is linked statically and cuBLASLt is opened when a GPU is first used, so the one library loads
# everywhere, GPU or not.

set(cuda_sources
  src/cuda/attention.cu)
set(cuda_host_sources
  src/cuda/launch_count.cpp)

set(cuda_parts)
set(cuda_text "not built")
if(NOT MICROGPT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MICROGPT_CUDA is '${MICROGPT_CUDA}' but must be AUTO, ON or OFF")
endif()
if(MICROGPT_CUDA STREQUAL "OFF")
  set(cuda_text "off")
else()
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # sm_80 is the first with bfloat16 products; the last also carries PTX, from which drivers make code for newer GPUs.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;120")
    if(MICROGPT_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "${MICROGPT_CUDA_ARCHITECTURES}")
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
      set(cuda_text "off: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.8")
    else()
      find_package(CUDAToolkit REQUIRED)
      set(cuda_text "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
      set(cuda_parts mg_cuda mg_cuda_kernels CUDA::cudart_static)
    endif()
  else()
    set(cuda_text "off: no nvcc")
  endif()
  if(MICROGPT_CUDA STREQUAL "ON" AND NOT cuda_parts)
    message(FATAL_ERROR "MICROGPT_CUDA is ON, but the CUDA backend is ${cuda_text}")
  endif()
endif()

if(cuda_parts)
  microgpt_objects(mg_cuda ${cuda_host_sources})
  target_include_directories(mg_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  string(REGEX REPLACE "-(real|virtual)" "" architectures "${CMAKE_CUDA_ARCHITECTURES}")
  list(JOIN architectures " " architectures)
  target_compile_definitions(mg_cuda PRIVATE MG_CUDA_ARCHITECTURES="${architectures}")

  add_library(mg_cuda_kernels OBJECT ${cuda_sources})
  target_compile_features(mg_cuda_kernels PUBLIC cuda_std_17)
  target_include_directories(mg_cuda_kernels PRIVATE src include)
  set_target_properties(mg_cuda_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_VISIBILITY_PRESET hidden
                                                   VISIBILITY_INLINES_HIDDEN ON CUDA_EXTENSIONS OFF)
  if(MICROGPT_WERROR)
    # A kernel that spills registers to memory is slow without looking so.
    target_compile_options(mg_cuda_kernels PRIVATE -Xptxas --warn-on-spills --Werror all-warnings -Xcompiler -Wall)
  endif()

  # Our declarations of cuBLASLt against the real ones, where its header is at hand.
  find_path(MICROGPT_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  if(MICROGPT_CUBLASLT_INCLUDE)
    microgpt_objects(mg_cublaslt_check src/cuda/cublaslt_check.cpp)
    target_include_directories(mg_cublaslt_check SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${MICROGPT_CUBLASLT_INCLUDE})
  endif()
else()
  microgpt_objects(mg_cuda src/cuda/no_cuda.cpp)
  set(cuda_parts mg_cuda)
endif()
