// Tensors as memory, by the exchange of DLPack: what a tensor holds and where, asked for in one call and without an allocation.
//
// The declarations follow DLPack 1.3, https://dmlc.github.io/dlpack/latest/c_api.html. Within major version 1 they do not change.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.hpp"

namespace sonde {
namespace dlpack {

constexpr uint32_t kMajor = 1;
constexpr int32_t kCpu = 1;
constexpr uint8_t kFloatCode = 2, kBrainFloatCode = 4;

struct Device { int32_t type, id; };
struct DataType { uint8_t code, bits; uint16_t lanes; };

struct DLTensor {
    void *data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct Header {
    uint32_t major, minor;
    const Header *previous;  // the same for an older major version
};

struct Exchange {
    Header header;
    void *unused[3];  // allocation, and exchange of tensors that own their memory
    int (*describe)(void *object, DLTensor *into);  // 0, or -1 with an exception set; may be null
    void *stream;
};

}  // namespace dlpack

// What torch gives when it is loaded, and which of its tensors are read as they are.
class Guard {
  public:
    // Takes the capsule with torch's exchange, the types whose objects are what they look like, and two callables: whether the
    // negative bit of a tensor is set, and how many threads a large one may be split among. False: there is no such exchange.
    bool connect(PyObject *capsule, PyObject *types, PyObject *is_negative, PyObject *threads) {
        auto *header = static_cast<const dlpack::Header *>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
        PyErr_Clear();
        while (header && header->major != dlpack::kMajor) header = header->previous;
        auto *exchange = reinterpret_cast<const dlpack::Exchange *>(header);
        if (!exchange || !exchange->describe || PyTuple_Size(types) != kTypes) return false;
        describe_ = exchange->describe;
        for (int i = 0; i < kTypes; i++) types_[i] = kept(PyTuple_GetItem(types, i));
        is_negative_ = kept(is_negative);
        threads_ = kept(threads);
        return true;
    }

    bool connected() const { return describe_ != nullptr; }

    // Whether *tensor* is plain: strided memory on the CPU, of one kind, that may be read as it is. No exception is left.
    bool view(PyObject *tensor, View &made) const {
        dlpack::DLTensor seen;
        if (!describe(tensor, seen)) return false;
        made.kind = Kind(kind_of(seen.dtype));
        made.data = static_cast<const char *>(seen.data) + seen.byte_offset;
        made.minus = nullptr;
        made.rank = seen.ndim;
        made.shape = seen.shape;
        made.strides = seen.strides;
        made.count = 1;
        for (int i = 0; i < seen.ndim; i++) made.count *= size_t(seen.shape[i]);
        if (made.count == 0 || is_negative(tensor)) return false;
        made.threads = made.count < kAlone ? 1 : threads(made.count);
        return true;
    }

    // The same, for the elements of *tensor* minus those of *other*, which has to be of the same kind, shape and strides.
    bool view(PyObject *tensor, PyObject *other, View &made) const {
        View subtracted;
        if (!view(tensor, made) || !view(other, subtracted)) return false;
        if (subtracted.kind != made.kind || subtracted.rank != made.rank) return false;
        for (int i = 0; i < made.rank; i++) {
            const bool alike = made.strides[i] == subtracted.strides[i] || made.shape[i] == 1;
            if (made.shape[i] != subtracted.shape[i] || !alike) return false;
        }
        made.minus = subtracted.data;
        return true;
    }

  private:
    static constexpr int kTypes = 2;

    static PyObject *kept(PyObject *object) {
        Py_INCREF(object);  // for the life of the process
        return object;
    }

    bool describe(PyObject *tensor, dlpack::DLTensor &seen) const {
        PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(tensor));
        if (type != types_[0] && type != types_[1]) return false;
        if (describe_(tensor, &seen) != 0) {  // sparse, nested, wrapped by a function transform, on no device, ...
            PyErr_Clear();
            return false;
        }
        return seen.data && seen.device.type == dlpack::kCpu && kind_of(seen.dtype) >= 0 && seen.ndim <= kMostDimensions &&
               (seen.strides || seen.ndim == 0);
    }

    static int kind_of(const dlpack::DataType &type) {
        if (type.lanes != 1) return -1;
        if (type.code == dlpack::kBrainFloatCode) return type.bits == 16 ? kBrainFloat : -1;
        if (type.code != dlpack::kFloatCode) return -1;
        return type.bits == 32 ? kFloat : type.bits == 64 ? kDouble : type.bits == 16 ? kHalf : -1;
    }

    // Also where that cannot be said.
    bool is_negative(PyObject *tensor) const {
        PyObject *answer = PyObject_CallFunctionObjArgs(is_negative_, tensor, nullptr);
        if (!answer) PyErr_Clear();
        const bool made = answer != Py_False;
        Py_XDECREF(answer);
        return made;
    }

    long threads(size_t count) const {
        PyObject *answer = PyObject_CallFunction(threads_, "n", Py_ssize_t(count));
        const long made = answer ? PyLong_AsLong(answer) : 1;
        Py_XDECREF(answer);
        PyErr_Clear();
        return made < 1 ? 1 : made;
    }

    int (*describe_)(void *, dlpack::DLTensor *) = nullptr;
    PyObject *types_[kTypes] = {}, *is_negative_ = nullptr, *threads_ = nullptr;
};

}  // namespace sonde
