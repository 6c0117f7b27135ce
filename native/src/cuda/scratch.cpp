#include "cuda/scratch.h"

#include "error.h"

namespace mg::cuda {

Scratch::~Scratch() {
    for (const Piece& piece : pieces_) device_.release(piece.memory);
}

void* Scratch::at_least(Use use, size_t bytes) {
    Piece& piece = pieces_[static_cast<size_t>(use)];
    bytes = rounded(bytes);
    if (bytes <= piece.bytes) return piece.memory;
    if (device_.capturing()) throw Error(MG_ERROR_INTERNAL, "scratch memory would grow while ops are being recorded");
    before_growth_();
    device_.release(piece.memory);
    piece = {nullptr, 0};
    piece.memory = device_.allocate(bytes);
    piece.bytes = bytes;
    device_.zero(piece.memory, bytes);
    return piece.memory;
}

}  // namespace mg::cuda
