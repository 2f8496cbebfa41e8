"""Alerts after the examples of OASIS's Common Alerting Protocol 1.2, appendix A."""

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<alert xmlns="urn:oasis:names:tc:emergency:cap:1.2">'
)

STORM = f"""{_HEAD}
  <identifier>KSTO1055887203</identifier>
  <sender>KSTO@NWS.NOAA.GOV</sender>
  <sent>2003-06-17T14:57:00-07:00</sent>
  <status>Actual</status>
  <msgType>Alert</msgType>
  <scope>Public</scope>
  <info>
    <category>Met</category>
    <event>SEVERE THUNDERSTORM</event>
    <responseType>Shelter</responseType>
    <urgency>Immediate</urgency>
    <severity>Severe</severity>
    <certainty>Observed</certainty>
    <eventCode><valueName>SAME</valueName><value>SVR</value></eventCode>
    <expires>2003-06-17T16:00:00-07:00</expires>
    <senderName>NATIONAL WEATHER SERVICE SACRAMENTO CA</senderName>
    <headline>SEVERE THUNDERSTORM WARNING</headline>
    <description>AT 254 PM PDT RADAR INDICATED A SEVERE THUNDERSTORM.</description>
    <instruction>TAKE COVER IN A SUBSTANTIAL SHELTER UNTIL THE STORM PASSES.</instruction>
    <area>
      <areaDesc>EXTREME NORTH CENTRAL TUOLUMNE COUNTY</areaDesc>
      <polygon>38.47,-120.14 38.34,-119.95 38.52,-119.74 38.62,-119.89 38.47,-120.14</polygon>
      <geocode><valueName>SAME</valueName><value>006109</value></geocode>
    </area>
  </info>
</alert>
"""

EARTHQUAKE = f"""{_HEAD}
  <identifier>TRI13970876.2</identifier>
  <sender>trinet@caltech.edu</sender>
  <sent>2003-06-11T20:56:00-07:00</sent>
  <status>Actual</status>
  <msgType>Update</msgType>
  <scope>Public</scope>
  <references>trinet@caltech.edu,TRI13970876.1,2003-06-11T20:30:00-07:00</references>
  <info>
    <category>Geo</category>
    <event>Earthquake</event>
    <urgency>Past</urgency>
    <severity>Minor</severity>
    <certainty>Observed</certainty>
    <headline>EQ 3.4 Imperial County CA</headline>
    <area>
      <areaDesc>1 mi. WSW of Winterhaven, CA</areaDesc>
      <circle>32.9525,-115.5527 0</circle>
    </area>
  </info>
</alert>
"""

AMBER = f"""{_HEAD}
  <identifier>KAR0-0306112239-SW</identifier>
  <sender>KARO@CLETS.DOJ.CA.GOV</sender>
  <sent>2003-06-11T22:39:00-07:00</sent>
  <status>Actual</status>
  <msgType>Alert</msgType>
  <scope>Public</scope>
  <info>
    <language>en-US</language>
    <category>Rescue</category>
    <event>Child Abduction</event>
    <urgency>Immediate</urgency>
    <severity>Severe</severity>
    <certainty>Likely</certainty>
    <headline>Amber Alert in Los Angeles County</headline>
    <area><areaDesc>Los Angeles County</areaDesc>
      <geocode><valueName>SAME</valueName><value>006037</value></geocode></area>
  </info>
  <info>
    <language>es-US</language>
    <category>Rescue</category>
    <event>Abducción de Niño</event>
    <urgency>Immediate</urgency>
    <severity>Severe</severity>
    <certainty>Likely</certainty>
    <headline>Alerta Amber en el condado de Los Ángeles</headline>
    <area><areaDesc>condado de Los Angeles</areaDesc>
      <geocode><valueName>SAME</valueName><value>006037</value></geocode></area>
  </info>
</alert>
"""

HURRICANE = f"""{_HEAD}
  <identifier>2.49.0.1.840.0-hurricane</identifier>
  <sender>w-nws.webmaster@noaa.gov</sender>
  <sent>2010-08-29T12:00:00-00:00</sent>
  <status>Exercise</status>
  <msgType>Alert</msgType>
  <scope>Public</scope>
  <info>
    <category>Met</category>
    <event>Hurricane</event>
    <urgency>Immediate</urgency>
    <severity>Extreme</severity>
    <certainty>Likely</certainty>
    <headline>Hurricane warning</headline>
    <area><areaDesc>The coast</areaDesc><circle>29.95,-90.07 50</circle></area>
  </info>
</alert>
"""

ALL = {"storm": STORM, "earthquake": EARTHQUAKE, "amber": AMBER, "hurricane": HURRICANE}
