/* Progress callbacks from long work: reading and writing of files, the teacher's pass, a step. They let a
 * watchdog distinguish a slow file system from a hang. */
#ifndef MEOPT_BASE_PROGRESS_H
#define MEOPT_BASE_PROGRESS_H

/* Sets the process's one listener, which any thread may call; NULL: none (the default). Set it before other
 * threads start. */
void progress_listen(void (*listener)(void *context), void *context);
/* Reports progress: a tensor, a few megabytes or an image is done. */
void progress_mark(void);

#endif
