"""Files of recordings and annotations: one module a format reads it, others write it or exchange it with libraries.

Readers handle files, not databases: `heartlm.databases` adds the names of record, patient and database.
"""
