# One frame of a model, for @ABOUT@. Written by stepnet.
# A program has this module with -DZEPHYR_EXTRA_MODULES=FOLDER, and uses it with CONFIG_@UPPER@=y.

if(CONFIG_@UPPER@)
  zephyr_include_directories(include)
  zephyr_library_import(@NAME@ ${CMAKE_CURRENT_LIST_DIR}/@ARCHIVE@)
endif()
