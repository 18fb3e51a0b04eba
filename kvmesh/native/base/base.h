/* What every room stands on: Python's headers, arguments, arrays, and the hash that tables place by.
 *
 * Everything runs under the interpreter's lock. shell.h makes types and methods, arguments.h reads their
 * arguments, names.h has names that C asks for, arrays.h numbers in a row. mixing.h hashes numbers that others choose, xxh3.h contents.
 */
#ifndef KVMESH_BASE_H
#define KVMESH_BASE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Number of this interface; `kvmesh.core` uses no other. */
#define NATIVE_VERSION 16

#endif
