/* A prompt whose hashes a Python object computes as far as they are asked for. */
#ifndef KVMESH_PROMPT_H
#define KVMESH_PROMPT_H

#include "search.h"

typedef struct {
    Prompt prompt;     /* first: what a search is given */
    PyObject *hashes;  /* has `upto`, see kvmesh.core.blocks.hashing.Hashes; borrowed */
    Py_buffer view;    /* of the hashes known so far, released before more are asked for */
} AskedPrompt;

/* Prepare all of them, once; -1 with MemoryError set. */
int prompt_ready(void);

/* Nothing is known yet, and nothing asked. */
void prompt_open(AskedPrompt *self, PyObject *hashes);

void prompt_close(AskedPrompt *self);

#endif
