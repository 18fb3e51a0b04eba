/* Scanned: a request body that was scanned, and keeps it. */
#pragma once

#include "bodies/scan.h"

typedef struct {
    PyObject_HEAD
    PyObject *body; /* bytes */
    PyObject *model; /* str */
    int chat;       /* else a completion */
    Scan scan;
} Scanned;

extern PyTypeObject scanned_type;
extern PyMethodDef native_scanned_methods[];
