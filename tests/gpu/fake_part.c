/* A library that is there, and nothing else: tests/gpu/libraries.c. */
int fake_part(void);
int fake_part(void) { return 1; }
