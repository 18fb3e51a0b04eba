/* A prompt whose hashes a Python object computes as far as they are asked for. */
#pragma once

#include "index/search.h"

typedef struct {
    Prompt prompt;     /* first: what a search is given */
    PyObject *hashes;  /* has `upto`, see kvmesh.core.blocks.hashing.Hashes; borrowed */
    Py_buffer view;    /* of the hashes known so far, released before more are asked for */
    Py_buffer ids;     /* of its tokens, once they are asked for */
} AskedPrompt;

/* Nothing is known yet, and nothing asked. */
void prompt_open(AskedPrompt *self, PyObject *hashes);

/* Ask for the tokens, if the object has them. May run anything; -1 with an error set. */
int prompt_ask_ids(AskedPrompt *self);

void prompt_close(AskedPrompt *self);
