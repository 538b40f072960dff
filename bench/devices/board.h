/* What a program for an emulated board has instead of a system. */
#ifndef BOARD_H
#define BOARD_H

unsigned used_stack(void);
void say(const char *name, unsigned number);
void keep(const void *data);

#endif
