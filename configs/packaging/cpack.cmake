# CPack reads this before it packs: its search for the libraries of a .deb leaves out the module of MPI, and includes what is loaded on first use.
set(SHLIBDEPS_EXECUTABLE ${CMAKE_CURRENT_LIST_DIR}/shlibdeps.sh)
set(ENV{MEOPT_LINKED} ${CPACK_MEOPT_LINKED})
