"""``python -m cli``: the ``octavo`` command where no script of that name is installed, as in a container."""

from cli.main import main

if __name__ == "__main__":
    main()
