/* What reads prompts from the ring in spare time (core.insight.decision_log): PrefixCounts and
 * RoundRobinShadow.
 */
#ifndef KVMESH_READERS_H
#define KVMESH_READERS_H

#include "base/base.h"

typedef struct {
    const uint64_t *hashes;
    Py_ssize_t count;
    Py_buffer view;
    uint64_t *copied;
} Prompt64;

/* Read u64s from a buffer of them, without a copy, or from a sequence; -1 with an error set. What
 * was read is to be let go.
 */
int prompt64_read(PyObject *given, Prompt64 *prompt);
void prompt64_forget(Prompt64 *prompt);

extern PyTypeObject prefix_counts_type, robin_shadow_type;

#endif
