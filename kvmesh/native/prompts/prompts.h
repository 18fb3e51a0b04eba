/* Prompts as token ids and as hashes of their blocks.
 *
 * packer.c makes the ids of chats of known form, of texts that text_cache.c keeps. hashing.c hashes each
 * block with the hash of the one before, hashed.c keeps a prompt's hashes. graded.h says which of them stand
 * for it where not all may.
 */
#pragma once

#include "base/base.h"

extern PyMethodDef native_hashing_methods[];
