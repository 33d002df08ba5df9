# Matrix products, as those of attention: their multiply-adds are fused.
file(GLOB products CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
set_source_files_properties(${products} PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
