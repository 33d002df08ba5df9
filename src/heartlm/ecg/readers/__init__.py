"""One module per file format. Each opens a path as a lazy `Recording`, or decodes an annotation file into arrays.

Readers handle files, not databases: `heartlm.ecg.database` adds the names of record, patient and database.
"""
