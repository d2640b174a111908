"""Speeds of chips and links, and times of collectives, from data sheets or measured."""
