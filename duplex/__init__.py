"""Sessions, the runtime that pairs frames with slots, and the wire protocols."""
