"""What `/?` and its kin show in a conversation."""

from __future__ import annotations

HELP = """\
Available commands:
  /set            Change the settings of this conversation
  /show           Show what the model is
  /load <model>   Go on with another model
  /save <model>   Keep this conversation as a model
  /list           List the models that the server has
  /clear          Forget what was said
  /bye, /exit     Leave
  /?, /help       Show this; /? shortcuts for the keys

Use \"\"\" to begin and end a message of several lines.
"""
IMAGES = "Use /path/to/file to include .jpg, .png, or .webp images.\n"
SET_HELP = """\
Available commands:
  /set parameter <name> <value>   Set a parameter, such as temperature 0.2
  /set system <text>              Set the system message
  /set history, nohistory         Keep what is typed, or not
  /set wordwrap, nowordwrap       Break lines between words, or not
  /set format json, noformat      Ask for JSON, or not
  /set verbose, quiet             Show times and rates, or not
  /set think [level], nothink     Let the model think first, or not
"""
PARAMETER_HELP = """\
Available parameters:
  /set parameter seed <int>               Random number seed
  /set parameter num_predict <int>        Most tokens of an answer
  /set parameter top_k <int>              Choose among so many tokens
  /set parameter top_p <float>            Choose among tokens of so much probability together
  /set parameter min_p <float>            Leave out tokens below this share of the best one's
  /set parameter num_ctx <int>            Size of the context
  /set parameter temperature <float>      How free the choice is
  /set parameter repeat_penalty <float>   How much repetition is punished
  /set parameter repeat_last_n <int>      How far back repetition counts
  /set parameter num_gpu <int>            Layers to put on the GPU
  /set parameter stop <string> ...        Texts that end the answer
"""
SHOW_HELP = """\
Available commands:
  /show info         Show what the model is
  /show license      Show its licence
  /show modelfile    Show a Modelfile
  /show parameters   Show its parameters and those set here
  /show system       Show the system message
  /show template     Show the chat template
"""
SHORTCUTS = """\
Ctrl + a, Ctrl + e   Go to the beginning, the end of the line
Alt + b, Alt + f     Go back, forward by one word
Ctrl + k, Ctrl + u   Delete to the end, to the beginning of the line
Ctrl + w             Delete the word before the cursor
Ctrl + l             Clear the screen
Ctrl + g             Write the message in an editor ($VISUAL, $EDITOR)
Ctrl + c             Stop the answer
Ctrl + d             Leave
Up, down, Ctrl + r   Go through, search what was typed before
"""
