# The target @NAME@::@NAME@: one frame of a model, for @ABOUT@. Written by stepnet.
#
#   find_package(@NAME@ CONFIG REQUIRED)        with this folder in CMAKE_PREFIX_PATH
#   target_link_libraries(program PRIVATE @NAME@::@NAME@)

if(NOT TARGET @NAME@::@NAME@)
  add_library(@NAME@::@NAME@ STATIC IMPORTED)
  set_target_properties(@NAME@::@NAME@ PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/@ARCHIVE@"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include"
  )
endif()
