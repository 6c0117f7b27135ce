// Stands in for cuBLASLt at the level of its interface: the objects, what it refuses, and products as tasks of the stream.  Where
// the library's documentation asks for something (types, strides, alignments, pointers) this asks for it too, and what the caller
// must see to himself, that the memory is his, ends the program.

#include <string.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "cuda/cublaslt_api.h"
#include "engine/failure.h"
#include "runtime/memory.h"
#include "runtime/product.h"
#include "runtime/runtime.h"
#include "engine/settings.h"

namespace mg::cuda::cublaslt {

struct Context {
    int unused;
};
struct MatrixLayout {
    DataType type;
    uint64_t rows, columns;
    int64_t stride;
};
struct MatmulDescription {
    ComputeType compute;
    DataType scale;
    Operation transpose_a = Operation::none, transpose_b = Operation::none;
    EpilogueKind epilogue = EpilogueKind::none;
    void* bias = nullptr;
    int32_t bias_type = -1;  // that of the result
    void* aux = nullptr;
    int64_t aux_stride = 0;
};
struct MatmulPreference {
    uint64_t workspace_bytes = 0;
    uint32_t reduction_schemes = 7;
    uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};

}  // namespace mg::cuda::cublaslt

namespace {

using namespace mg::cuda::cublaslt;

constexpr Status kInvalid = static_cast<Status>(7), kNotInitialized = static_cast<Status>(1),
                 kNotSupported = Status::not_supported;

// An epilogue is a set of things done to the result; the values are the library's.
constexpr uint32_t kBias = 4, kResultGradient = 16, kGelu = 32, kGeluBackward = 64, kAux = 128, kGradientOfA = 256,
                   kGradientOfB = 512;

uint32_t steps(const MatmulDescription& d) {
    return static_cast<uint32_t>(d.epilogue) == 1 ? 0 : static_cast<uint32_t>(d.epilogue);
}

bool known_epilogue(uint32_t epilogue) {
    for (const uint32_t known : {0u, kBias, kGelu | kAux | kBias, kGelu | kAux, kGeluBackward | kAux,
                                 kGeluBackward | kAux | kResultGradient, kGradientOfA, kGradientOfB})
        if (epilogue == known) return true;
    return false;
}

size_t size_of(DataType type) { return type == DataType::real_32f ? 4 : 2; }

// What cublasLtMatmulAlgo_t holds here.
struct Choice {
    uint64_t mark;
    uint64_t workspace_bytes;
    uint32_t alignment[4];
};
constexpr uint64_t kMark = 0x6d6773696d;
static_assert(sizeof(Choice) <= sizeof(Algorithm), "the library's structure has room for it");

// Whether the product can be done at all, whatever the pointers.
Status check(const MatmulDescription* op, const MatrixLayout* a, const MatrixLayout* b, const MatrixLayout* c,
             const MatrixLayout* d) {
    if (op == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) return kInvalid;
    const bool ta = op->transpose_a == Operation::transpose, tb = op->transpose_b == Operation::transpose;
    const uint64_t depth = ta ? a->rows : a->columns;
    if ((ta ? a->columns : a->rows) != d->rows || (tb ? b->columns : b->rows) != depth ||
        (tb ? b->rows : b->columns) != d->columns || c->rows != d->rows || c->columns != d->columns)
        return kInvalid;
    for (const MatrixLayout* m : {a, b, c, d})
        if (m->stride < static_cast<int64_t>(m->rows) || m->rows == 0 || m->columns == 0) return kInvalid;
    if (op->compute != ComputeType::float_32 || op->scale != DataType::real_32f) return kNotSupported;
    if (a->type != b->type || c->type != d->type) return kNotSupported;
    if (a->type == DataType::real_32f && d->type != DataType::real_32f) return kNotSupported;
    const uint32_t epilogue = steps(*op);
    if (!known_epilogue(epilogue) || (epilogue != 0 && !mgsim::settings().epilogues)) return kNotSupported;
    const bool uses_bias = (epilogue & (kBias | kResultGradient | kGradientOfA | kGradientOfB)) != 0;
    if (uses_bias && op->bias_type != -1 && op->bias_type != static_cast<int32_t>(d->type)) return kNotSupported;
    if ((epilogue & kAux) != 0) {
        if (op->aux_stride < static_cast<int64_t>(d->rows) || op->aux_stride % 8 != 0) return kNotSupported;
        if (reinterpret_cast<uintptr_t>(op->aux) % 16 != 0) return kNotSupported;
    }
    return Status::success;
}

// Every byte of the matrix is in one allocation, or the library would read or write what is another's.
void check_extent(const void* at, const MatrixLayout& m, const char* name) {
    const mgsim::Allocation* const found = mgsim::find_allocation(at);
    const uint64_t bytes = ((m.columns - 1) * static_cast<uint64_t>(m.stride) + m.rows) * size_of(m.type);
    if (found == nullptr) mgsim::fail("cublasLtMatmul: %s is to no memory of the device", name);
    if (reinterpret_cast<uintptr_t>(at) - found->begin + bytes > found->bytes)
        mgsim::fail("cublasLtMatmul: %s is %llu bytes, past the end of its memory", name,
                    static_cast<unsigned long long>(bytes));
}

mgsim::ProductMatrix matrix(const void* at, const MatrixLayout& m) {
    return {const_cast<void*>(at), m.type == DataType::real_16bf, static_cast<int64_t>(m.rows),
            static_cast<int64_t>(m.columns), m.stride};
}

template <typename T>
Status take(T* to, const void* value, size_t bytes) {
    if (value == nullptr || bytes != sizeof(T)) return kInvalid;
    memcpy(to, value, sizeof(T));
    return Status::success;
}

struct Library {
    static Status create(Handle* handle) {
        if (mgsim::settings().devices == 0) return kNotInitialized;
        *handle = new Context{0};
        return Status::success;
    }
    static Status destroy(Handle handle) {
        delete handle;
        return Status::success;
    }
    static size_t version() { return 130101; }
    static const char* status_name(Status status) {
        switch (static_cast<uint32_t>(status)) {
            case 0: return "CUBLAS_STATUS_SUCCESS";
            case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
            case 7: return "CUBLAS_STATUS_INVALID_VALUE";
            case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
            case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
            default: return "CUBLAS_STATUS_INTERNAL_ERROR";
        }
    }
    static Status description_create(Description* made, ComputeType compute, DataType scale) {
        *made = new MatmulDescription;
        (*made)->compute = compute;
        (*made)->scale = scale;
        return Status::success;
    }
    static Status description_destroy(Description description) {
        delete description;
        return Status::success;
    }
    static Status description_set(Description d, DescAttribute attribute, const void* value, size_t bytes) {
        if (d == nullptr) return kInvalid;
        switch (attribute) {
            case DescAttribute::transpose_a: return take(&d->transpose_a, value, bytes);
            case DescAttribute::transpose_b: return take(&d->transpose_b, value, bytes);
            case DescAttribute::epilogue: return take(&d->epilogue, value, bytes);
            case DescAttribute::bias_pointer: return take(&d->bias, value, bytes);
            case DescAttribute::aux_pointer: return take(&d->aux, value, bytes);
            case DescAttribute::aux_stride: return take(&d->aux_stride, value, bytes);
            case DescAttribute::bias_data_type: return take(&d->bias_type, value, bytes);
        }
        return kInvalid;
    }
    static Status layout_create(Layout* made, DataType type, uint64_t rows, uint64_t columns, int64_t stride) {
        *made = new MatrixLayout{type, rows, columns, stride};
        return Status::success;
    }
    static Status layout_destroy(Layout layout) {
        delete layout;
        return Status::success;
    }
    static Status preference_create(Preference* made) {
        *made = new MatmulPreference;
        return Status::success;
    }
    static Status preference_destroy(Preference preference) {
        delete preference;
        return Status::success;
    }
    static Status preference_set(Preference p, PreferenceAttribute attribute, const void* value, size_t bytes) {
        if (p == nullptr) return kInvalid;
        switch (attribute) {
            case PreferenceAttribute::max_workspace_bytes: return take(&p->workspace_bytes, value, bytes);
            case PreferenceAttribute::reduction_scheme_mask: return take(&p->reduction_schemes, value, bytes);
            case PreferenceAttribute::min_alignment_a: return take(&p->alignment[0], value, bytes);
            case PreferenceAttribute::min_alignment_b: return take(&p->alignment[1], value, bytes);
            case PreferenceAttribute::min_alignment_c: return take(&p->alignment[2], value, bytes);
            case PreferenceAttribute::min_alignment_d: return take(&p->alignment[3], value, bytes);
        }
        return kInvalid;
    }

    // The one algorithm: it relies on all the alignment it is promised, and splits a long depth if there is workspace for that.
    static Status heuristic(Handle handle, Description op, Layout a, Layout b, Layout c, Layout d,
                            Preference preference, int wanted, HeuristicResult* results, int* found) {
        if (handle == nullptr || preference == nullptr || results == nullptr || found == nullptr || wanted < 1)
            return kInvalid;
        *found = 0;
        if (const Status status = check(op, a, b, c, d); status != Status::success) return status;
        Choice choice{kMark, 0, {}};
        memcpy(choice.alignment, preference->alignment, sizeof choice.alignment);
        const uint64_t depth = op->transpose_a == Operation::transpose ? a->rows : a->columns;
        const uint64_t halves = 2 * d->rows * d->columns * sizeof(float);
        if (depth >= d->rows && (preference->reduction_schemes & kReductionInComputeType) != 0 &&
            halves <= preference->workspace_bytes)
            choice.workspace_bytes = halves;
        results[0] = HeuristicResult{};
        memcpy(results[0].algorithm.data, &choice, sizeof choice);
        results[0].workspace_bytes = choice.workspace_bytes;
        results[0].state = Status::success;
        results[0].waves = 1.0f;
        *found = 1;
        return Status::success;
    }

    static Status matmul(Handle handle, Description op, const void* alpha, const void* a, Layout a_layout,
                         const void* b, Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d,
                         Layout d_layout, const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                         cudaStream_t stream) {
        if (handle == nullptr || alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr || d == nullptr)
            return kInvalid;
        if (const Status status = check(op, a_layout, b_layout, c_layout, d_layout); status != Status::success)
            return status;
        mgsim::Product p{};
        memcpy(&p.alpha, alpha, sizeof p.alpha);
        memcpy(&p.beta, beta, sizeof p.beta);
        if (c == nullptr && p.beta != 0.0f) return kInvalid;
        Choice choice{};
        if (algorithm != nullptr) {
            memcpy(&choice, algorithm->data, sizeof choice);
            if (choice.mark != kMark) return kInvalid;
            const void* const pointers[4] = {a, b, c, d};
            for (int i = 0; i < 4; ++i)
                if (choice.alignment[i] != 0 && reinterpret_cast<uintptr_t>(pointers[i]) % choice.alignment[i] != 0)
                    return kInvalid;
        }
        if (choice.workspace_bytes > workspace_bytes) return kInvalid;
        if (choice.workspace_bytes != 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 16 != 0))
            return kInvalid;

        const uint32_t epilogue = steps(*op);
        const bool uses_bias = (epilogue & (kBias | kResultGradient | kGradientOfA | kGradientOfB)) != 0;
        if ((uses_bias && op->bias == nullptr) || ((epilogue & kAux) != 0 && op->aux == nullptr)) return kInvalid;
        if (reinterpret_cast<uintptr_t>(op->bias) % size_of(d_layout->type) != 0 && uses_bias) return kInvalid;
        p.a = matrix(a, *a_layout);
        p.b = matrix(b, *b_layout);
        p.c = matrix(c, *c_layout);
        p.d = matrix(d, *d_layout);
        p.a_transposed = op->transpose_a == Operation::transpose;
        p.b_transposed = op->transpose_b == Operation::transpose;
        p.step = (epilogue & kGelu) != 0           ? mgsim::ResultStep::kGelu
                 : (epilogue & kGeluBackward) != 0 ? mgsim::ResultStep::kGeluBackward
                                                   : mgsim::ResultStep::kNone;
        p.gradient = (epilogue & kGradientOfA) != 0      ? mgsim::BiasGradient::kOfA
                     : (epilogue & kGradientOfB) != 0    ? mgsim::BiasGradient::kOfB
                     : (epilogue & kResultGradient) != 0 ? mgsim::BiasGradient::kOfResult
                                                         : mgsim::BiasGradient::kNone;
        p.bias = uses_bias ? op->bias : nullptr;
        MatrixLayout hidden = *d_layout;
        hidden.stride = op->aux_stride;
        p.hidden = matrix(op->aux, hidden);

        const mgsim::Lock lock(mgsim::runtime_mutex());
        check_extent(a, *a_layout, "A");
        check_extent(b, *b_layout, "B");
        check_extent(d, *d_layout, "D");
        if (p.beta != 0.0f) check_extent(c, *c_layout, "C");
        if ((epilogue & kAux) != 0) check_extent(op->aux, hidden, "the GELU's input");
        if (uses_bias) {
            const uint64_t length = p.gradient == mgsim::BiasGradient::kOfB ? d_layout->columns : d_layout->rows;
            check_extent(op->bias, {d_layout->type, length, 1, static_cast<int64_t>(length)}, "the bias");
        }
        if (choice.workspace_bytes != 0)
            check_extent(workspace, {DataType::real_32f, choice.workspace_bytes / 4, 1, 0}, "the workspace");
        const std::vector<mgsim::Reference> references = {mgsim::Reference(a),       mgsim::Reference(b),
                                                          mgsim::Reference(c),       mgsim::Reference(d),
                                                          mgsim::Reference(op->aux), mgsim::Reference(op->bias)};
        const auto run = [=] {
            for (const mgsim::Reference& reference : references) reference.check("a product");
            if (choice.workspace_bytes != 0)
                memset(workspace, 0xff, choice.workspace_bytes);  // whoever keeps data there loses it
            mgsim::multiply(p);
        };
        return mgsim::enqueue(stream, {run, true}) == cudaSuccess ? Status::success : static_cast<Status>(13);
    }
};

}  // namespace

extern "C" void* mgsim_cublaslt_symbol(const char* name) {
#define MGSIM_SYMBOL(member, symbol, result, parameters)                                   \
    static_assert(std::is_same_v<decltype(Functions::member), decltype(&Library::member)>, \
                  "the interface's own signature");                                        \
    if (strcmp(name, #symbol) == 0) return reinterpret_cast<void*>(&Library::member);
    MG_CUBLASLT_FUNCTIONS(MGSIM_SYMBOL)
#undef MGSIM_SYMBOL
    return nullptr;
}
