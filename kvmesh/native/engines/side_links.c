/* Lists of a few among many records: see side_links.h. */
#include "base/mixing.h"
#include "engines/side_links.h"

#define FEWEST_LINKS 8

void links_free(SideLinks *self) {
    for (int part = 0; part < LINK_PARTS; part++) {
        PyMem_RawFree(self->parts[part].links);
    }
    memset(self, 0, sizeof *self);
}

/* Numbers are given in turn, but who stores blocks chooses which of them get links. */
static inline uint32_t home_of(const LinkPart *part, uint32_t number) {
    return (uint32_t)(mixed(number) >> 26) & (part->room - 1);
}

static inline uint32_t part_of(uint32_t number) { return (uint32_t)(mixed(number) >> 58); }

Link *links_find(const SideLinks *self, uint32_t number) {
    const LinkPart *part = self->parts + part_of(number);
    if (!part->room) {
        return NULL;
    }
    uint32_t at = home_of(part, number);
    while (part->links[at].number != NO_LINK) {
        if (part->links[at].number == number) {
            return part->links + at;
        }
        at = (at + 1) & (part->room - 1);
    }
    return NULL;
}

static void place(LinkPart *part, Link link) {
    uint32_t at = home_of(part, link.number);
    while (part->links[at].number != NO_LINK) {
        at = (at + 1) & (part->room - 1);
    }
    part->links[at] = link;
}

static int grow(LinkPart *part) {
    uint32_t room = part->room ? 2 * part->room : FEWEST_LINKS;
    LinkPart grown = {PyMem_RawMalloc(room * sizeof *grown.links), room, part->used};
    NEED_MEMORY(grown.links);
    memset(grown.links, 0xFF, room * sizeof *grown.links);
    for (uint32_t at = 0; at < part->room; at++) {
        if (part->links[at].number != NO_LINK) {
            place(&grown, part->links[at]);
        }
    }
    PyMem_RawFree(part->links);
    *part = grown;
    return 0;
}

int links_make(SideLinks *self, uint32_t number, uint32_t before, uint32_t behind) {
    LinkPart *part = self->parts + part_of(number);
    TRY_IF(part->used >= part->room / 4 * 3, grow(part));
    place(part, (Link){number, before, behind});
    part->used++;
    return 0;
}

static void erase(SideLinks *self, Link *link) {
    LinkPart *part = self->parts + part_of(link->number);
    uint32_t last = part->room - 1, hole = (uint32_t)(link - part->links);
    CLOSE_HOLE(hole, last, part->links[at].number == NO_LINK,
               home_of(part, part->links[at].number), part->links[hole] = part->links[at]);
    part->links[hole].number = NO_LINK;
    part->used--;
}

void links_remove(SideLinks *self, uint32_t number) {
    Link *link = links_find(self, number);
    uint32_t before = link->before, behind = link->behind;
    if (before != NO_LINK) {
        links_find(self, before)->behind = behind;
    }
    if (behind != NO_LINK) {
        links_find(self, behind)->before = before;
    }
    erase(self, link);
}

int siblings_add(SideLinks *self, uint32_t *first, uint32_t number) {
    uint32_t behind = *first;
    if (behind != NO_LINK) {
        TRY_IF(links_find(self, behind) == NULL, links_make(self, behind, NO_LINK, NO_LINK));
        TRY(links_make(self, number, NO_LINK, behind));
        links_find(self, behind)->before = number;
    }
    *first = number;
    return 0;
}

void siblings_remove(SideLinks *self, uint32_t *first, uint32_t number) {
    Link *link = links_find(self, number);
    if (link == NULL) {
        *first = NO_LINK;
        return;
    }
    if (*first == number) {
        *first = link->behind;
    }
    links_remove(self, number);
    link = links_find(self, *first);
    if (link->behind == NO_LINK) {
        erase(self, link);
    }
}
