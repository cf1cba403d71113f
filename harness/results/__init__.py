"""Result folders: their files, result.json, and everything derived from them."""
