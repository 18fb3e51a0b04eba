"""From a request's body to its tokens and wishes."""
