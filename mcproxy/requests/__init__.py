"""Common code for requests to servers and to ingresses: reports them, ends them, and gives reasons for their end."""
