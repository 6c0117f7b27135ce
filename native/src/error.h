// The one exception of the engine and the helpers that raise it.  c_api.cpp turns it into a status and a text.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>

#include "microgpt_cuda.h"

namespace mg {

class Error : public std::runtime_error {
   public:
    Error(mg_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
    mg_status status() const { return status_; }

   private:
    mg_status status_;
};

// printf-style text of any length; texts say what was wrong and what was seen.
template <typename... Values>
std::string format(const char* pattern, Values... values) {
    const int length = std::snprintf(nullptr, 0, pattern, values...);
    std::string text(length > 0 ? static_cast<size_t>(length) + 1 : 1, '\0');
    std::snprintf(&text[0], text.size(), pattern, values...);
    text.pop_back();
    return text;
}

inline std::string format(const char* text) { return text; }

// Raises MG_ERROR_ARGUMENT unless the condition holds.
template <typename... Values>
void check_argument(bool condition, const char* pattern, Values... values) {
    if (!condition) throw Error(MG_ERROR_ARGUMENT, format(pattern, values...));
}

// Raises MG_ERROR_STATE (a call at the wrong time) unless the condition holds.
template <typename... Values>
void check_state(bool condition, const char* pattern, Values... values) {
    if (!condition) throw Error(MG_ERROR_STATE, format(pattern, values...));
}

}  // namespace mg
