// What every extern "C" function does around its body: exceptions become a status and the thread's last error.
#pragma once

#include <new>
#include <string>

#include "error.h"

namespace mg {

// This thread's newest error, read by mg_last_error().
std::string& last_error();

inline mg_status fail(mg_status status, const char* text) {
    try {
        last_error() = text;
    } catch (...) {
        // No memory even for the text: the status still tells.
    }
    return status;
}

template <typename Body>
mg_status guarded(const Body& body) {
    try {
        body();
        return MG_OK;
    } catch (const Error& error) {
        return fail(error.status(), error.what());
    } catch (const std::bad_alloc&) {
        return fail(MG_ERROR_MEMORY, "the host has no memory left");
    } catch (const std::exception& error) {
        return fail(MG_ERROR_INTERNAL, error.what());
    } catch (...) {
        return fail(MG_ERROR_INTERNAL, "an unknown exception in the engine");
    }
}

// Of functions that return no status: body(), or `otherwise` where there is no memory for what it does.
template <typename T, typename Body>
T guarded_or(T otherwise, const Body& body) noexcept {
    try {
        return body();
    } catch (...) {
        return otherwise;
    }
}

template <typename T>
void check_pointer(const T* pointer, const char* call, const char* name) {
    check_argument(pointer != nullptr, "%s: %s is null", call, name);
}

}  // namespace mg
