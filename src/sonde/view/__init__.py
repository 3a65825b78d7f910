"""How things look: the table printer. Nothing here knows a model, a hook or torch."""
