"""Pure decisions: what is wanted and what is seen go in, a Plan comes out.

Nothing here does I/O, looks at a clock or draws random numbers; a Plan only says what to do.
"""
