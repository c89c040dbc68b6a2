/* A library that is there, and nothing else: tests/libraries.c. */
int fake_part(void);
int fake_part(void) { return 1; }
