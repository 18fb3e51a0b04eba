/* What the parts of kvmesh._native share. Everything runs under the interpreter's lock. */
#ifndef KVMESH_CORE_H
#define KVMESH_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Number of this interface; `kvmesh.core` uses no other. */
#define NATIVE_VERSION 16

extern PyMethodDef native_hashing_methods[], native_json_methods[],
    native_head_methods[], native_extproc_read_methods[], native_extproc_write_methods[];
extern PyTypeObject engine_cache_type, event_stream_type, group_table_type, session_type;
int hpack_ready(void);

#endif
