// How the simulator ends when it has found a defect: one line on stderr, exit status 66, at once.  A test cannot overlook that.
#pragma once

namespace mgsim {

// The line ends with the kernel, block and thread that run, if any.
[[noreturn]] void fail(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace mgsim
