/* Signs of life out of long work: reading and writing of files, the teacher's pass, a step. Who watches over
 * the process tells a slow file system from a hang by them. */
#ifndef MEOPT_BASE_PROGRESS_H
#define MEOPT_BASE_PROGRESS_H

/* One listener in a process, called from any thread; NULL: none, as at the start. To be set before there are
 * other threads. */
void progress_listen(void (*hear)(void *context), void *context);
/* Something has been done: a tensor, a few megabytes, an image. */
void progress_mark(void);

#endif
