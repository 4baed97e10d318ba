/*
 * list.h - doubly linked lists whose links lie in the members
 */
#ifndef IDEMKIT_LIST_H
#define IDEMKIT_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* A head, or a member's link. A lone one points at itself. */
typedef struct IdemkitLink
{
	struct IdemkitLink *next;
	struct IdemkitLink *previous;
} IdemkitLink;

/* The struct that a link lies in. */
#define IDEMKIT_MEMBER(type, member, link) ((type *) ((char *) (link) -offsetof(type, member)))

static inline void
idemkit_list_init(IdemkitLink *link)
{
	link->next = link->previous = link;
}

static inline bool
idemkit_list_empty(const IdemkitLink *head)
{
	return head->next == head;
}

static inline void
idemkit_list_remove(IdemkitLink *link)
{
	link->previous->next = link->next;
	link->next->previous = link->previous;
	idemkit_list_init(link);
}

static inline void
idemkit_list_append(IdemkitLink *head, IdemkitLink *link)
{
	link->previous = head->previous;
	link->next = head;
	head->previous->next = link;
	head->previous = link;
}

/*
 * Move all members of from to the front of to, in their order.
 */
static inline void
idemkit_list_prepend_all(IdemkitLink *to, IdemkitLink *from)
{
	if (idemkit_list_empty(from))
		return;
	from->previous->next = to->next;
	to->next->previous = from->previous;
	from->next->previous = to;
	to->next = from->next;
	idemkit_list_init(from);
}

#endif /* IDEMKIT_LIST_H */
