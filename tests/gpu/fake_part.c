/* A library without symbols, for tests/gpu/libraries.c. */
int fake_part(void);
int fake_part(void) { return 1; }
