"""Checks within one section, of its rules: what they name, shadow or leave open. Sections call them."""
