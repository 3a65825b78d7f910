// How a tensor is added to the row of a statistic.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.hpp"
#include "passes.hpp"

namespace sonde {

extern const Passes *passes;  // those in use

struct Reduction {
    const char *name;
    // Adds a tensor to *row*, whose fields are those of the statistic. *arguments* is the tuple that native.Kernel holds. If it
    // cannot be done for such a tensor, the answer is false and nothing was written; there may be an exception.
    bool (*add)(double *row, const View &view, PyObject *arguments);
};

constexpr int kReductions = 4;
extern const Reduction reductions[kReductions];  // as native.py numbers them

}  // namespace sonde
