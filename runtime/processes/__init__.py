"""An engine in processes of its own: server, scheduler and detokenizer, and the parent that starts and watches them."""
