#include "cuda/architectures.h"

#include <cctype>

namespace mg::cuda {
namespace {

// One entry, such as "90a-real": code for GPUs of the same major version and no smaller minor one; with an "a" for that one GPU
// alone, with an "f" for its family; without "-real" also PTX, which the driver compiles for any newer GPU.
bool entry_runs_on(const std::string& entry, int major, int minor) {
    size_t at = 0;
    int number = 0;
    for (; at < entry.size() && std::isdigit(static_cast<unsigned char>(entry[at])) != 0; ++at)
        number = 10 * number + (entry[at] - '0');
    if (at == 0) return true;
    const int gpu = 10 * major + minor;
    const char variant = at < entry.size() ? entry[at] : '\0';
    if (variant == 'a') return gpu == number;
    const bool ptx_alone = entry.find("-virtual") != std::string::npos,
               code_alone = entry.find("-real") != std::string::npos;
    const bool code = !ptx_alone && number / 10 == major && number <= gpu;
    return code || (variant != 'f' && !code_alone && number <= gpu);
}

}  // namespace

bool runs_on(const std::string& list, int major, int minor) {
    bool any = false;
    for (size_t begin = 0; begin < list.size();) {
        size_t end = list.find_first_of("; ,", begin);
        if (end == std::string::npos) end = list.size();
        if (end > begin) {
            any = true;
            if (entry_runs_on(list.substr(begin, end - begin), major, minor)) return true;
        }
        begin = end + 1;
    }
    return !any;  // no list: can't be judged either
}

}  // namespace mg::cuda
