/* One engine's KV events: from msgpack to prefix-closed events of content hashes.
 *
 * engine_batch.c reads a batch. residents.c finds the contents of the engine's own hashes. contents.c
 * counts them by tier, closing.c announces a block only while its predecessor is. handover.c gives all of
 * it to a later process. engine_cache.c is what Python sees. keyed.c and side_links.c are their tables.
 */
#pragma once

#include "base/base.h"

extern PyTypeObject engine_cache_type;
