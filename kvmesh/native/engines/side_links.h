/* Doubly linked lists of a few among many records: links stand beside the records that have any.
 *
 * 64 parts of open addressing in 12 bytes an entry, grown one by one.
 */
#pragma once

#include "base/base.h"

#define LINK_PARTS 64
#define NO_LINK UINT32_MAX

typedef struct {
    uint32_t number, before, behind; /* a record, NO_LINK for a free place, and its neighbours */
} Link;

typedef struct {
    Link *links;
    uint32_t room, used; /* `room` is a power of two, or 0 */
} LinkPart;

typedef struct {
    LinkPart parts[LINK_PARTS];
} SideLinks;

void links_free(SideLinks *self);

/* Return a record's links, NULL for none; good until any link is made or removed. */
Link *links_find(const SideLinks *self, uint32_t number);

/* Give a record that has none links; -1 with MemoryError set. */
int links_make(SideLinks *self, uint32_t number, uint32_t before, uint32_t behind);

/* Take the links of a record away, that of its neighbours being closed. */
void links_remove(SideLinks *self, uint32_t number);

/* A list whose only member has no links: `first` is NO_LINK when it is empty. */
int siblings_add(SideLinks *self, uint32_t *first, uint32_t number);
void siblings_remove(SideLinks *self, uint32_t *first, uint32_t number);
