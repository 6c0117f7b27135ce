// Memory of a backend with an owner.
#pragma once

#include "backend.h"

namespace mg {

class Buffer {
   public:
    explicit Buffer(Backend& backend) : backend_(&backend) {}
    ~Buffer() { release(); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // Makes room for at least that many bytes; contents are lost when it grows.
    void reserve(size_t bytes) {
        if (bytes <= bytes_) return;
        release();
        memory_ = backend_->allocate(bytes);
        bytes_ = bytes;
    }

    void release() {
        backend_->release(memory_);
        memory_ = nullptr;
        bytes_ = 0;
    }

    bool empty() const { return memory_ == nullptr; }
    void* get() const { return memory_; }
    template <typename T>
    T* as() const {
        return static_cast<T*>(memory_);
    }

   private:
    Backend* backend_;
    void* memory_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace mg
