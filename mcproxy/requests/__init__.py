"""Common code for requests to servers and to ingresses: reports requests, ends them early, and names their outcome."""
