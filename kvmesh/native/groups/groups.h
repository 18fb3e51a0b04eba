/* Engines whose cache has several groups: what each group holds, and where a hit may end.
 *
 * group_table.c counts blocks by group, tier and hash. group_ends.c follows which prefixes all groups have
 * together, group_rule.c works them out anew for another rule. group_table_type.c is what Python sees.
 */
#pragma once

#include "base/base.h"

extern PyTypeObject group_table_type;
