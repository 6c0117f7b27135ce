#include "cuda/cublaslt_loader.h"

#include <mutex>

#include "cuda/create.h"
#include "error.h"

#if defined(MG_CUDA_SIM)
// The simulator's own products, by the library's names.
extern "C" void* mgsim_cublaslt_symbol(const char* name);
#else
#include <dlfcn.h>
#endif

namespace mg::cuda {
namespace {

std::mutex mutex;
std::string given_path;
cublaslt::Functions functions;
bool loaded = false;

#if defined(MG_CUDA_SIM)
void* open_library(std::string*) { return &functions; }
void* find_symbol(void*, const char* name) { return mgsim_cublaslt_symbol(name); }
void close_library(void*) {}
#else
// The first that opens; the names are those of the major versions whose interface is the same.
void* open_library(std::string* tried) {
    for (const char* name : {given_path.c_str(), "libcublasLt.so.13", "libcublasLt.so.12"}) {
        if (*name == '\0') continue;
        if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
        const char* why = dlerror();
        if (!tried->empty()) *tried += "; ";
        *tried += why == nullptr ? name : why;
    }
    return nullptr;
}
void* find_symbol(void* library, const char* name) { return dlsym(library, name); }
void close_library(void* library) { dlclose(library); }
#endif

void load() {
    std::string tried;
    void* library = open_library(&tried);
    if (library == nullptr)
        throw Error(MG_ERROR_DEVICE,
                    format("cuBLASLt was not found (pip install nvidia-cublas brings it): %s", tried.c_str()));
    const char* missing = nullptr;
    cublaslt::Functions found{};
#define MG_LOAD(member, name, result, parameters)                                         \
    found.member = reinterpret_cast<decltype(found.member)>(find_symbol(library, #name)); \
    if (found.member == nullptr) missing = #name;
    MG_CUBLASLT_FUNCTIONS(MG_LOAD)
#undef MG_LOAD
    if (missing != nullptr) {
        close_library(library);
        throw Error(MG_ERROR_DEVICE, format("the cuBLASLt that was found has no %s: it is too old", missing));
    }
    functions = found;
    loaded = true;
}

}  // namespace

const cublaslt::Functions& cublaslt_functions() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!loaded) load();
    return functions;
}

std::string cublaslt_version() {
    const size_t version = cublaslt_functions().version();
    return format("%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

void set_cublaslt_path(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex);
    given_path = path;
}

}  // namespace mg::cuda
