# CPack reads this before it packs: its search for the libraries of a .deb leaves out the module of MPI.
set(SHLIBDEPS_EXECUTABLE ${CMAKE_CURRENT_LIST_DIR}/shlibdeps.sh)
